package nodes

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// detailsEvery is how often the hypervisors are read, with the servers on them, while no drain moves any.
const detailsEvery = 5 * time.Minute

// read reads the hosts in at most two calls for any number of them. Most polls only read which of them report. A whole
// one reads the list of services and a page of hypervisors, after the marker, and returns the marker of the next page.
// An empty list is no news of a cloud that had hosts: then the account does not see them.
func (w Watcher) read(
	ctx context.Context, before []domain.Node, isWhole bool, marker string,
) (hosts []domain.ComputeHost, next string, err error) {
	if isWhole {
		hosts, err = w.Cloud.ComputeServices(ctx)
	} else {
		hosts, err = w.reports(ctx, before)
	}
	if err == nil && len(hosts) == 0 && slices.ContainsFunc(before, isNovas) {
		err = apperr.New(apperr.BadGateway, "Nova's list of compute services is empty")
	}
	if err == nil && isWhole {
		next, err = w.Cloud.DescribeHosts(ctx, hosts, marker)
	}
	return hosts, next, err
}

// ForAdmins replaces the words in which Nova's policy forbids a call by a sentence for callers who are no admins. Other
// errors stay, such as that of a token whose access rules do not permit the call.
func ForAdmins(err error, sentence string) error {
	if apperr.CodeOf(err) == apperr.Forbidden && strings.HasPrefix(apperr.As(err).Message, "nova: ") {
		return apperr.Wrap(apperr.Forbidden, err, "%s", sentence)
	}
	return err
}

// isNovas reports whether Nova has a node, or had it.
func isNovas(n domain.Node) bool { return n.ServiceID != "" }

// reports reads which hosts report, by the call that has the least. That has no disabled hosts, and no ids and reasons,
// which are known. When more than one host is disabled, one is not up, or another host is there than before, the list
// of services is read instead: it shows which hosts an admin has forced down.
func (w Watcher) reports(ctx context.Context, before []domain.Node) ([]domain.ComputeHost, error) {
	enabled, disabled, isUp := map[string]domain.Node{}, []string{}, true
	for _, n := range before {
		if isNovas(n) && n.Enabled {
			enabled[n.Name], isUp = n, isUp && n.IsUp
		} else if isNovas(n) {
			disabled = append(disabled, n.Name)
		}
	}
	if !isUp || len(enabled) == 0 || len(disabled) > 1 {
		return w.Cloud.ComputeServices(ctx)
	}
	hosts, err := w.Cloud.HostReports(ctx)
	if err != nil {
		return nil, err
	}
	for i, h := range hosts {
		n, isKnown := enabled[h.Name]
		if !isKnown || !h.IsUp {
			return w.Cloud.ComputeServices(ctx)
		}
		hosts[i].ServiceID = n.ServiceID
	}
	if len(hosts) != len(enabled) {
		return w.Cloud.ComputeServices(ctx)
	}
	if len(disabled) == 0 {
		return hosts, nil
	}
	last, err := w.Cloud.ComputeService(ctx, disabled[0])
	if apperr.CodeOf(err) == apperr.NotFound { // its nova-compute was deleted
		return hosts, nil
	}
	return append(hosts, last), err
}
