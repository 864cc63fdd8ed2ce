package openstack

// maxClouds bounds the other clouds and regions that are kept. Whoever makes a connection names the region.
const maxClouds = 100

// At is another cloud, reached as AddRemotes has said, or another region of this one. authURL "" is this cloud's
// Keystone. The same cloud and region is the same Cloud, so that its catalogs are kept.
func (c *Cloud) At(authURL, region string) *Cloud {
	other := &Cloud{
		identity: c.identity, region: c.region, iface: c.iface, http: c.http, remotes: c.remotes,
		versions: c.versions,
	}
	switch identity := identityURL(authURL); {
	case authURL == "":
	case identity == c.identity:
		other.region = ""
	default: // with its own interface and authorities, and not this cloud's
		found, client := c.remotes.find(identity)
		other.identity, other.region, other.iface, other.http = identity, found.region, found.iface, client
	}
	if region != "" {
		other.region = region
	}
	if other.identity == c.identity && other.region == c.region {
		other.overrides = c.overrides
	}
	return c.kept(other)
}

// kept is the Cloud that is kept of the other's Keystone and region, or else the other itself, which is kept from now
// on.
func (c *Cloud) kept(other *Cloud) *Cloud {
	key := other.identity + " " + other.region
	if known, ok := c.others.Get(key); ok {
		return known
	}
	other.catalogs, other.others = newCatalogCache(), c.others
	if known, ok, _ := c.others.PeekOrAdd(key, other); ok { // somebody else was faster
		return known
	}
	return other
}

// Region is the region that the cloud's services are looked for in; "" when its catalog has one only.
func (c *Cloud) Region() string { return c.region }
