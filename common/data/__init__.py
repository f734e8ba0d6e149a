"""Where data comes from: the registry (`locate`), the standard-library corpus, and readers that two papers share."""
