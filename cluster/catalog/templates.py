"""Which template the endpoint of a client is made from (R109, R110).

The client profile may name one; then no other counts, and the creation fails if it does not exist. Otherwise the
template with the longest name filter that matches is used; of equally long ones the first by name. Without any, the
defaults of docs/attributes.md apply. What the client gives overrides all of it (R108).

    name_filter         fits                     does not fit
    orders/in           orders/in                orders/in/x
    orders/*            orders/in                orders, orders/in/x
    orders/>            orders/in, orders/in/x   orders
    >                   everything
    (empty)             nothing: the template is named by profiles only

A template named by a profile wins over one that matches by name, because it was named on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors, topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.objects import Attributes

#: The attribute of a client profile that names a template, by the kind of the endpoint.
PROFILE_ATTRIBUTES: Final = {"queue": "queue_template", "topic-endpoint": "topic_endpoint_template"}
#: What a template has and an endpoint has not.
_OF_TEMPLATES_ONLY: Final = ("kind_of_endpoint", "name_filter", "durability_override")


def choose(
    templates: Mapping[str, Attributes], kind: str, name: str, profile: Attributes
) -> Attributes | None:
    """Give the template for an endpoint that a client with this profile creates, or None.

    Args:
        templates: those of the Message VPN, by name.
        kind: queue or topic-endpoint.
        name: of the endpoint.
        profile: the client profile, complete.

    Raises:
        NotFoundError: the profile names one that is missing, or is for the other kind (40401).
    """
    named = profile[PROFILE_ATTRIBUTES[kind]]
    if named:
        template = templates.get(named)
        if template is None or template["kind_of_endpoint"] != kind:
            detail = f"template {named!r} for a {kind}, which the client profile names in {PROFILE_ATTRIBUTES[kind]}"
            raise errors.error_for(errors.OBJECT_NOT_FOUND, detail)
        return template
    fitting = [
        (-len(template["name_filter"]), template_name)
        for template_name, template in templates.items()
        if template["kind_of_endpoint"] == kind and fits(template["name_filter"], name)
    ]
    return templates[min(fitting)[1]] if fitting else None


def fits(name_filter: str, name: str) -> bool:
    """Tell whether a name filter fits a name; the grammar of filters, where wildcards are whole last levels."""
    return bool(name_filter) and topic.matches(name_filter, name)


def endpoint_attributes(template: Attributes) -> Attributes:
    """Give what a template says of the endpoints made from it."""
    return {name: value for name, value in template.items() if name not in _OF_TEMPLATES_ONLY}
