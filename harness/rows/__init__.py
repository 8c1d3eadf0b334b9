"""Row identity: schedules, plays, traces and the named checks that read them."""
