package domain

import "slices"

// AccessRule is one call that a Keystone application credential may be limited to. In the path * stands for one segment, and **
// for any.
type AccessRule struct {
	Service string `json:"service"` // its type in Keystone's catalog
	Method  string `json:"method"`
	Path    string `json:"path"`
}

// Every path begins with **, because Nova, Glance and Neutron may be behind a prefix, such as /compute/v2.1.
var (
	serverAction = AccessRule{"compute", "POST", "/**/servers/*/action"}

	// What is read of the cloud whatever is permitted: the servers' states, and how much there is room for.
	accessAlways = []AccessRule{
		{"compute", "GET", "/**/servers/*"}, // servers/detail, too
		{"compute", "GET", "/**/flavors/*"},
		{"compute", "GET", "/**/limits"},
	}
	accessFor = map[Permission][]AccessRule{
		MayAllocate: {
			{"compute", "POST", "/**/servers"},
			serverAction, // one that is to be stopped is stopped as soon as it runs, and one that is taken again is started
			{"compute", "GET", "/**/os-keypairs"},
			{"compute", "POST", "/**/os-keypairs"},
			{"compute", "DELETE", "/**/os-keypairs/*"},
			{"image", "GET", "/**/images"},
			{"image", "GET", "/**/images/*"},
			{"network", "GET", "/**/networks"},
			{"network", "GET", "/**/subnets"},
		},
		MayConnect: {},
		MayStart:   {serverAction},
		MayStop:    {serverAction},
		MayReboot:  {serverAction},
		MayDeploy:  {serverAction},
		MayDeallocate: {
			{"compute", "DELETE", "/**/servers/*"},
			{"network", "GET", "/**/ports"},
		},
	}
)

// AccessRules are what an application credential must allow for the permissions: all that is called with it, and no more. Nova
// tells its actions apart by their bodies, which rules cannot see, so whoever may stop a server may by them do any action.
func AccessRules(permissions []Permission) []AccessRule {
	rules := slices.Clone(accessAlways)
	for _, p := range permissions {
		for _, rule := range accessFor[p] {
			if !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
	}
	return rules
}
