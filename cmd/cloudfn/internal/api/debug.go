package api

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

const redacted = "[redacted]"

// secretHeaders and secretFields are never shown, whatever is being looked for.
var (
	secretHeaders = []string{"X-Auth-Token", "X-Subject-Token", "Authorization", "Cookie", "Set-Cookie"}
	secretFields  = []string{"secret", "password", "token", "join_token", "private_key", "user_data", "env"}
)

func (c *Client) debugRequest(req *http.Request, body []byte) {
	if c.debug == nil {
		return
	}
	c.debug("> %s %s", req.Method, req.URL.Redacted())
	c.debugHeader(">", req.Header)
	c.debugBody(">", body)
}

func (c *Client) debugAnswer(resp *http.Response, body []byte, took time.Duration) {
	if c.debug == nil {
		return
	}
	c.debug("< %s in %s", resp.Status, took.Round(100*time.Microsecond))
	c.debugHeader("<", resp.Header)
	c.debugBody("<", body)
}

func (c *Client) debugHeader(side string, h http.Header) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		value := strings.Join(h[name], ", ")
		if slices.Contains(secretHeaders, name) {
			value = redacted
		}
		c.debug("%s %s: %s", side, name, value)
	}
}

// debugBody shows JSON without what is secret. Of what is no JSON only the size is shown.
func (c *Client) debugBody(side string, body []byte) {
	if len(body) == 0 {
		return
	}
	var value any
	if json.Unmarshal(body, &value) != nil {
		c.debug("%s (%d bytes)", side, len(body))
		return
	}
	shown, err := json.Marshal(hide(value))
	if err == nil {
		c.debug("%s %s", side, shown)
	}
}

func hide(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, inner := range value {
			if slices.Contains(secretFields, name) && inner != nil {
				value[name] = redacted
				continue
			}
			value[name] = hide(inner)
		}
	case []any:
		for i, inner := range value {
			value[i] = hide(inner)
		}
	}
	return value
}
