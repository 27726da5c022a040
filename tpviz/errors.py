"""The errors and the warning that a run can end in (no logic)."""


class RankError(RuntimeError):
    """A rank's program raised; ``__cause__`` is the original exception and ``rank`` is the rank's number."""

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


class CollectiveMismatch(RuntimeError):
    """The ranks did not meet in one collective: real ranks would hang here, or compute a wrong number."""


class AbandonedByRank(RankError, CollectiveMismatch):
    """A rank raised while others waited for it: a ``RankError`` whose message also says where the others wait."""


class CallSiteWarning(UserWarning):
    """Ranks met in one collective from different source lines."""
