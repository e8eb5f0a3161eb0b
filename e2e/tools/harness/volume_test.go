package harness

import (
	"encoding/json"
	"testing"
	"time"
)

func TestTokenAsTheKubeletHandsItOver(t *testing.T) {
	p := &Plugin{opts: PluginOptions{Dir: t.TempDir()}}
	v := NewVolume("apps", "web-1", nil)
	if req := p.PublishRequest(v); req.Secrets != nil || req.VolumeContext[tokensKey] != "" {
		t.Errorf("tokens of a pod without one: %v", req)
	}
	v.Token = "abc"
	for _, inSecrets := range []bool{false, true} {
		v.TokenInSecrets = inSecrets
		req := p.PublishRequest(v)
		there, elsewhere := req.VolumeContext, req.Secrets
		if inSecrets {
			there, elsewhere = elsewhere, there
		}
		if _, ok := elsewhere[tokensKey]; ok {
			t.Errorf("in secrets %t: the token is in both maps", inSecrets)
		}
		var tokens map[string]struct {
			Token               string    `json:"token"`
			ExpirationTimestamp time.Time `json:"expirationTimestamp"`
		}
		if err := json.Unmarshal([]byte(there[tokensKey]), &tokens); err != nil {
			t.Fatal(err)
		}
		if got := tokens[""]; len(tokens) != 1 || got.Token != "abc" || time.Until(got.ExpirationTimestamp) < time.Minute {
			t.Errorf("in secrets %t: %v", inSecrets, tokens)
		}
	}
}
