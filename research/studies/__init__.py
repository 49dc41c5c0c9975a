"""Studies, a module each: what is run, and the tables and plots of it (`research.study.Study`)."""
