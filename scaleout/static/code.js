// the front end: code
