"""Why a ranker ranks as it does: the parts of a difference of two scores, and what each feature is worth."""
