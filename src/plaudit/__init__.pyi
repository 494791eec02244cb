from plaudit.contracts import check_judge as check_judge
from plaudit.contracts import check_learner as check_learner
from plaudit.contracts import check_policy as check_policy
from plaudit.contracts import check_robot as check_robot
from plaudit.contracts import check_vec_env as check_vec_env
from plaudit.data.replay import ReplaySampler as ReplaySampler
from plaudit.data.store import Store as Store
from plaudit.errors import PlauditError as PlauditError
from plaudit.training.api import evaluate as evaluate
from plaudit.training.api import evaluate_judge as evaluate_judge
from plaudit.training.api import label as label
from plaudit.training.api import load_judge as load_judge
from plaudit.training.api import train as train
from plaudit.training.api import train_reward as train_reward
from plaudit.types import Episode as Episode
from plaudit.types import JudgeId as JudgeId
from plaudit.types import Labels as Labels
from plaudit.types import Observation as Observation
from plaudit.types import Scores as Scores

__version__: str
