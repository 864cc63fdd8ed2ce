package servers

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

type historyAnswer struct {
	InstanceID uuid.UUID `json:"instance_id"`
	Events     []event   `json:"events"` // the newest first
	Next       *string   `json:"next"`
}

// event is an event as callbacks get it.
type event struct {
	ID   string          `json:"id"`
	Type string          `json:"type"`
	At   time.Time       `json:"at"`
	Data json.RawMessage `json:"data"`
}

func (h handler) history(r *http.Request) (historyAnswer, error) {
	params, err := httpx.ReadQuery(r, "connection_id", "limit", "marker")
	if err != nil {
		return historyAnswer{}, err
	}
	limit, err := params.Int("limit", defaultLimit, 1, httpx.MaxLimit)
	if err != nil {
		return historyAnswer{}, err
	}
	before, err := params.Int("marker", 0, 1, 1<<53)
	if err != nil {
		return historyAnswer{}, err
	}
	var connection uuid.UUID
	if text := params.Text("connection_id"); text != "" {
		if connection, err = connectionID(text); err != nil {
			return historyAnswer{}, err
		}
	}
	id, err := pathID(r)
	if err != nil {
		return historyAnswer{}, err
	}
	who, token, err := auth.Project(r.Context())
	if err != nil {
		return historyAnswer{}, err
	}
	a, err := h.svc.access(r.Context(), who, token, connection)
	if err != nil {
		return historyAnswer{}, err
	}
	instance, found, err := h.svc.History(r.Context(), a, id, int64(before), limit+1)
	if err != nil {
		return historyAnswer{}, err
	}
	out := historyAnswer{InstanceID: instance, Events: make([]event, min(limit, len(found)))}
	for n := range out.Events {
		e := found[n]
		out.Events[n] = event{ID: e.Subject + ":" + strconv.FormatInt(e.Seq, 10), Type: e.Type, At: e.At, Data: e.Data}
	}
	if len(found) > limit {
		out.Next = httpx.Next(r, strconv.FormatInt(found[limit-1].Seq, 10))
	}
	return out, nil
}
