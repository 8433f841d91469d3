"""The gateway for HTTP.

`targets` and `credentials` say what a request wants and who sends it, `messages` what it says in our own words;
`client` is what all requests with the same credentials are at the node, and `clients` has them all.
"""
