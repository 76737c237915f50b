// the front end: jupyter
