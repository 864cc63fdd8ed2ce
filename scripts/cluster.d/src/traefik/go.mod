module cloudfn.cluster/traefik

go 1.26.0

require github.com/go-acme/lego/v4 v4.33.0
