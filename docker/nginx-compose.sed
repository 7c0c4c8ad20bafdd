# Makes deploy/nginx/fedcore-http.conf fit docker/compose-replicas.yaml.
s/10\.0\.0\.1:8443/server-1:8443/
s/10\.0\.0\.2:8443/server-2:8443/
