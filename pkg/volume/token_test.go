package volume

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	canaryToken = "eyJhbGciOi.CANARY.c2ln"
	expiry      = "2030-01-02T03:04:05Z"
)

func tokens(audience, token, expires string) map[string]string {
	return map[string]string{tokensKey: fmt.Sprintf(`{%q:{"token":%q,"expirationTimestamp":%q}}`, audience, token, expires)}
}

func TestTokenFromRequestRefuses(t *testing.T) {
	const fix = `the CSIDriver object must have tokenRequests: [{audience: ""}] and requiresRepublish: true`
	for want, test := range map[string]struct{ secrets, context map[string]string }{
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens]: Required value: ` + fix:                                                      {},
		`secrets[csi.storage.k8s.io/serviceAccount.tokens]: Invalid value: "a string of 22 bytes": must be a JSON object of tokens by audience`: {map[string]string{tokensKey: canaryToken}, tokens("", canaryToken, expiry)},
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens][]: Required value: ` + fix:                                                    {nil, tokens("vault", canaryToken, expiry)},
		`volume_context[csi.storage.k8s.io/serviceAccount.tokens][]: Invalid value: "an object": must have token and expirationTimestamp`:       {nil, map[string]string{tokensKey: `{"":{"token":"` + canaryToken + `"}}`}},
		`secrets[csi.storage.k8s.io/serviceAccount.tokens][]: Invalid value: "an object": must have token and expirationTimestamp`:              {tokens("", "", expiry), nil},
		`secrets[csi.storage.k8s.io/serviceAccount.tokens]: Invalid value: "a string of 68 bytes": must be a JSON object of tokens by audience`: {tokens("", canaryToken, "soon"), nil},
	} {
		got, err := TokenFromRequest(test.secrets, test.context)
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if err != nil && strings.Contains(err.Error(), "CANARY") || got.Reveal() != "" {
			t.Errorf("%s: the error or what came with it holds the token", want)
		}
	}
}

// A value that holds a token never shows it when it is formatted or marshalled.
func TestTokenIsNeverShown(t *testing.T) {
	token := NewToken(canaryToken, time.Now())
	type hidden struct{ token Token }
	for _, held := range []any{token, &token, hidden{token}, struct{ Token Token }{token}, []Token{token}, map[string]*Token{"a": &token}} {
		asJSON, err := json.Marshal(held)
		if err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if text := fmt.Sprintf(verb, held); strings.Contains(text, "CANARY") || strings.Contains(text, fmt.Sprintf("%x", "CANARY")) {
				t.Errorf("%s of %T shows the token", verb, held)
			}
		}
		if strings.Contains(string(asJSON), "CANARY") {
			t.Errorf("JSON of %T shows the token", held)
		}
	}
}

// A token that the kubelet provides again is the same one, whenever it expires.
func TestSameToken(t *testing.T) {
	now := time.Now()
	token := NewToken(canaryToken, now)
	for name, test := range map[string]struct {
		other Token
		want  bool
	}{
		"provided again": {NewToken(canaryToken, now.Add(time.Hour)), true},
		"the next one":   {NewToken(canaryToken+"2", now), false},
		"none":           {Token{}, false},
	} {
		if token.Same(test.other) != test.want || test.other.Same(token) != test.want {
			t.Errorf("%s: want %t", name, test.want)
		}
	}
}
