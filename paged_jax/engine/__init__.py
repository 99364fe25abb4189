"""The engine: what joins the host's scheduler, the compiled programs and the requests' answers."""
