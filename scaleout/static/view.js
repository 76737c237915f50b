// the front end: view
