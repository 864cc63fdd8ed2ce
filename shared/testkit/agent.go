package testkit

import (
	"encoding/json"
	"strings"
	"testing"
)

// AgentParameters reads the deployment, its token and the image from a server's user_data. All are empty when no agent is deployed.
func AgentParameters(t testing.TB, server string) (deployment, token, image string) {
	t.Helper()
	var config struct {
		Files []struct {
			Path    string
			Content []byte
		} `json:"write_files"`
	}
	text, ok := strings.CutPrefix(UserData(t, server), "#cloud-config\n")
	if !ok {
		return "", "", ""
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	for _, f := range config.Files {
		if strings.HasSuffix(f.Path, "/parameters") {
			lines := strings.Split(string(f.Content), "\n")
			return lines[1], lines[2], lines[5]
		}
	}
	t.Fatalf("the user_data has no parameters: %s", text)
	return "", "", ""
}
