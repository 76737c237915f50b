// the front end: controls
