package domain

import "testing"

// TestSameRule: rules that Neutron takes for the same, in other forms.
func TestSameRule(t *testing.T) {
	t.Parallel()
	port := func(n int) *int { return &n }
	base := SecurityGroupRule{
		Direction: "ingress", Ethertype: "IPv4", Protocol: "tcp", PortMin: port(1), PortMax: port(2),
	}
	change := func(do func(*SecurityGroupRule)) SecurityGroupRule {
		r := base
		do(&r)
		return r
	}
	for name, r := range map[string]SecurityGroupRule{
		"a number":      change(func(r *SecurityGroupRule) { r.Protocol = "6" }),
		"a description": change(func(r *SecurityGroupRule) { r.Description = "x" }),
		"all addresses": change(func(r *SecurityGroupRule) { r.RemoteCIDR = "0.0.0.0/0" }),
	} {
		if !base.IsSame(r) || !r.IsSame(base) {
			t.Errorf("%s: %+v is another one", name, r)
		}
	}
	for name, r := range map[string]SecurityGroupRule{
		"direction": change(func(r *SecurityGroupRule) { r.Direction = "egress" }),
		"port":      change(func(r *SecurityGroupRule) { r.PortMax = port(3) }),
		"no port":   change(func(r *SecurityGroupRule) { r.PortMin, r.PortMax = nil, nil }),
		"range":     change(func(r *SecurityGroupRule) { r.RemoteCIDR = "10.0.0.0/8" }),
		"group":     change(func(r *SecurityGroupRule) { r.RemoteGroup = "x" }),
	} {
		if base.IsSame(r) {
			t.Errorf("%s: %+v is the same", name, r)
		}
	}
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/8": "10.0.0.0/8", "2001:DB8::1/32": "2001:db8::/32", "::1": "::1/128",
	} {
		if got, err := ParseCIDR(text); err != nil || got.String() != want {
			t.Errorf("%s: got %s %v, want %s", text, got, err, want)
		}
	}
}
