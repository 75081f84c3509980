"""Where the frames of a run come from.

subscription  the frames that an observer publishes, and questions to it
recorded      frames by the record of the run alone
unprepared    groups that nobody prepared, and the runs that they become
takeover      the start of another observer, where a run has none
other_users   those of the runs of other users, for root
"""
