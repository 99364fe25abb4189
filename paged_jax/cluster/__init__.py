"""One engine over several hosts: rank 0 schedules and serves, the others follow.

Every rank runs the same compiled programs on one mesh over all hosts' devices. Before rank 0 calls
a program it sends the arrays that the host decides (`plans`) to every follower (`leader`), and
those call it with the same (`follower`).
"""
