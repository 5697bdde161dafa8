from torchrank.functional.arrays import to_offsets
from torchrank.functional.conventions import CONVENTIONS, MEASURES, describe
from torchrank.functional.measures.graded import *
from torchrank.functional.measures.binary import *
from torchrank.functional.measures.pairs import *
from torchrank.functional.measures.votes import *
from torchrank.functional.measures.evaluation import *
from torchrank.functional.ragged import pad, unpad
