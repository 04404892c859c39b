"""Exceptions of campaigns."""


class CampaignError(ValueError):
    """Raised for a campaign, recipients or an action that cannot be used; says where the fault is
    and what is wanted."""


class WrongState(CampaignError):
    """Raised for an action that the state of a campaign does not allow."""


class UnknownCampaign(KeyError):
    """Raised when there is no campaign of that id."""
