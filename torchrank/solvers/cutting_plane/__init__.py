"""The stabilised cutting plane of MLR and SVM-map: its cuts, the reduced problem, and the solvers of that."""
