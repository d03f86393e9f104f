"""The nodes of plans: one file each, by the contract in ``base.py``."""

from service.privacy.plans.base import Node, Plan
from service.privacy.plans.choice import Choice
from service.privacy.plans.group import Group
from service.privacy.plans.parallel import Parallel
from service.privacy.plans.repeat import Repeat
from service.privacy.plans.sequence import Sequence

NODES: dict[str, type[Node]] = {node.TYPE: node for node in (Sequence, Parallel, Choice, Repeat, Group)}
"""All nodes, by their names in documents."""

__all__ = ["NODES", "Choice", "Group", "Node", "Parallel", "Plan", "Repeat", "Sequence"]
