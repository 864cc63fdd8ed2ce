package domain

import "slices"

// PortGroups is the outcome of StepGroups.
type PortGroups struct {
	Problem *Problem `json:"problem,omitempty"` // why a port has other security groups
}

// SetsGroups reports whether a network of the server has security groups of its own.
func (s LaunchSpec) SetsGroups() bool {
	return slices.ContainsFunc(s.Attachments, func(a Attachment) bool { return a.SecurityGroups != nil })
}

// awaitsGroups reports whether StepGroups is to be taken for the instance. Its ports may exist while it is building.
func (o Order) awaitsGroups(i Instance) bool {
	switch i.State {
	case InstanceError, InstanceDeleting, InstanceDeleted:
		return false
	}
	return o.Spec.SetsGroups && i.ServerID != "" && i.Spec.SetsGroups() && i.PortGroups == nil
}

// AwaitsPorts reports whether Nova may still make ports of the server.
func (i Instance) AwaitsPorts() bool {
	return i.State == InstanceRequested || i.State == InstanceBuilding || i.State == InstanceUnknown
}

// lacksGroups reports whether a port could not be given its security groups.
func (i Instance) lacksGroups() bool { return i.PortGroups != nil && i.PortGroups.Problem != nil }

// lacksPart reports whether the server could not be given its security groups or its floating IP.
func (i Instance) lacksPart() bool { return i.partProblem() != nil }

func (i Instance) partProblem() *Problem {
	switch {
	case i.lacksGroups():
		return i.PortGroups.Problem
	case i.FloatingIP != nil:
		return i.FloatingIP.Problem
	}
	return nil
}

// Failure is why the instance is not as ordered; nil = it is, or is not yet.
func (i Instance) Failure() *Problem {
	if i.Problem == nil {
		return i.partProblem()
	}
	return i.Problem
}
