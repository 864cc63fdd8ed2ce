package nodes

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// changeRoutes declares what admins and agents say of nodes.
func changeRoutes(api huma.API, h handler) {
	writes := httpx.Before(auth.CanWrite)
	httpx.Register(api, huma.Operation{
		OperationID: "describeNode", Method: http.MethodPut, Path: "/v1/nodes/{name}", Tags: tags, Middlewares: writes,
		Summary: "Replace what is set of a host",
		Responses: httpx.Answers(map[int]string{
			200: "The host as it is now.", 403: notMine, 404: notFound, 409: "Others change the host at the same time.",
			412: "",
		}),
	}, h.describe)
	httpx.Register(api, huma.Operation{
		OperationID: "deleteNode", Method: http.MethodDelete, Path: "/v1/nodes/{name}", Tags: tags, Middlewares: writes,
		DefaultStatus: http.StatusNoContent, Summary: "Delete a host that is down and empty",
		Responses: httpx.Answers(map[int]string{
			204: "Nova has the host no more, and nothing is stored of it.",
			403: notMine,
			404: notFound,
			409: "The host is up, has servers, is drained, or is reservable.",
		}),
	}, h.delete)
	httpx.Register(api, huma.Operation{
		OperationID: "reportNode", Method: http.MethodPost, Path: "/v1/nodes/{name}/heartbeat", Tags: tags,
		Middlewares: writes, DefaultStatus: http.StatusNoContent, Summary: "Report how a host is",
		Responses: httpx.Answers(map[int]string{204: "It is recorded.", 403: notMine}),
	}, h.report)
}

// DescribeNode is the body of PUT /v1/nodes/{name}.
type DescribeNode struct {
	Labels      map[string]string `json:"labels,omitempty" maxProperties:"50" doc:"Texts by key."`
	RegionZone  string            `json:"region_zone,omitempty" maxLength:"255" doc:"Where the host is."`
	NetworkZone string            `json:"network_zone,omitempty" maxLength:"255" doc:"The same, of the network."`
	Providers   []string          `json:"providers,omitempty" maxItems:"20" uniqueItems:"true"`
	StatusURL   string            `json:"status_url,omitempty" maxLength:"2048"`
	Alert       bool              `json:"alert,omitempty" default:"true" doc:"Whether its changes are events."`
	AutoCordon  string            `json:"auto_cordon_after,omitempty" minLength:"1" maxLength:"100" example:"PT10M"`
	AutoDrain   string            `json:"auto_drain_after,omitempty" minLength:"1" maxLength:"100" example:"PT30M"`
}

var labelKey = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$`)

const maxLabel = 255

// Resolve implements huma.Resolver.
func (d *DescribeNode) Resolve(huma.Context) (faults []error) {
	for key, value := range d.Labels {
		if !labelKey.MatchString(key) {
			faults = append(faults, apperr.InvalidField("labels", "a key has 1 to 63 letters, digits, '.', '_', '/' "+
				"and '-', and begins and ends with a letter or digit"))
		} else if len(value) > maxLabel {
			faults = append(faults, apperr.InvalidField("labels."+key, "is longer than 255 bytes"))
		}
	}
	if u, err := url.Parse(d.StatusURL); d.StatusURL != "" && (err != nil || u.Host == "" ||
		!slices.Contains([]string{"http", "https"}, u.Scheme)) {
		faults = append(faults, apperr.InvalidField("status_url", "must be a URL that begins with http:// or https://"))
	}
	for field, p := range map[string]string{"auto_cordon_after": d.AutoCordon, "auto_drain_after": d.AutoDrain} {
		if _, fault := fixed(p); fault != "" {
			faults = append(faults, apperr.InvalidField(field, fault))
		}
	}
	return faults
}

// fixed is the length of a period that has one: years and months have none. An absent period is zero.
func fixed(p string) (length time.Duration, fault string) {
	if p == "" {
		return 0, ""
	}
	parsed, err := domain.ParsePeriod(p)
	if err != nil {
		return 0, err.Error()
	}
	lengths := map[time.Duration]bool{}
	for _, month := range []time.Month{time.January, time.February, time.April} {
		from := time.Date(2023, month, 1, 0, 0, 0, 0, time.UTC)
		length = parsed.AddTo(from).Sub(from)
		lengths[length] = true
	}
	if strings.Contains(parsed.String(), "Y") || len(lengths) > 1 {
		return 0, "must be of weeks, days, hours, minutes and seconds: years and months differ in length"
	}
	return length, ""
}

func (d *DescribeNode) settings() domain.NodeSettings {
	cordonAfter, _ := fixed(d.AutoCordon) // Resolve has refused what cannot be read
	drainAfter, _ := fixed(d.AutoDrain)
	return domain.NodeSettings{
		Labels: d.Labels, RegionZone: d.RegionZone, NetworkZone: d.NetworkZone, Providers: d.Providers,
		StatusURL: d.StatusURL, Alert: d.Alert, AutoCordonAfter: cordonAfter, AutoDrainAfter: drainAfter,
	}
}

type describeInput struct {
	NodePath
	IfMatch string `header:"If-Match" minLength:"1" example:"\"3\""`
	Body    DescribeNode
}

func (h handler) describe(ctx context.Context, in *describeInput) (*nodeOutput, error) {
	who, token := auth.Caller(ctx)
	expected := ifMatch(httpx.RequestOf(ctx))
	return reply(h.svc.Describe(ctx, who, token, in.Name, in.Body.settings(), expected))
}

// ifMatch reports whether a version is one that the request expects (RFC 9110, If-Match). Without the header any
// version is.
func ifMatch(r *http.Request) func(domain.Node) bool {
	given := r.Header.Values("If-Match")
	return func(n domain.Node) bool {
		versions := strings.Split(strings.Join(given, ","), ",")
		return len(given) == 0 || slices.ContainsFunc(versions, func(version string) bool {
			version = strings.TrimSpace(version)
			return version == "*" || version == etag(n)
		})
	}
}

func (h handler) delete(ctx context.Context, in *NodePath) (*struct{}, error) {
	who, token := auth.Caller(ctx)
	return nil, h.svc.Delete(ctx, who, token, in.Name)
}

// ReportNode is the body of a heartbeat.
type ReportNode struct {
	Status domain.NodeStatus `json:"status" enum:"up,suspect,down"`
	Reason string            `json:"reason,omitempty" maxLength:"500" doc:"Shown as the reason of its status."`
}

type reportInput struct {
	NodePath
	Body ReportNode
}

// hostName is what a host of at most maxHostName bytes may be called: its first report stores it.
var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

const maxHostName = 255

func (h handler) report(ctx context.Context, in *reportInput) (*struct{}, error) {
	if len(in.Name) > maxHostName || !hostName.MatchString(in.Name) {
		return nil, apperr.InvalidField("name", "must be a host name: letters, digits, '.', '_' and '-'")
	}
	who, token := auth.Caller(ctx)
	return nil, h.svc.Report(ctx, who, token, in.Name, in.Body.Status, in.Body.Reason)
}
