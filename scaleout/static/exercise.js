// the front end: exercise
