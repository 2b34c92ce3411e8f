"""The operator: watches GNNPipeJobs and owns their pods."""
