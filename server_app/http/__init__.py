"""HTTP in front of the routes: authentication, limits on connections and requests, and problem documents."""
