package volume

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ServiceAccount names a service account. The zero value is none.
type ServiceAccount struct{ Namespace, Name string }

// String returns namespace/name.
func (a ServiceAccount) String() string { return a.Namespace + "/" + a.Name }

// Account returns the pod's service account.
func (p Pod) Account() ServiceAccount {
	return ServiceAccount{Namespace: p.Namespace, Name: p.ServiceAccount}
}

// Token is a pod's own token of its service account, as the kubelet provides it. Formatting or marshalling a Token, or a value that holds
// one, never shows it, because it is behind a pointer that no formatter follows. The zero Token is none.
type Token struct {
	secret *string
	// Expires is when the API server stops accepting it.
	Expires time.Time
}

// NewToken returns a token with the time at which it expires.
func NewToken(secret string, expires time.Time) Token {
	return Token{secret: &secret, Expires: expires}
}

// Reveal returns the token itself, or "" for the zero Token. It may only be used in a header of a request to the API server.
func (t Token) Reveal() string {
	if t.secret == nil {
		return ""
	}
	return *t.secret
}

// Same reports whether two tokens have the same text.
func (t Token) Same(other Token) bool { return t.Reveal() == other.Reveal() }

// tokensKey is the key with which the kubelet provides a pod's tokens, by audience: in the secrets of a request if the CSIDriver object has
// serviceAccountTokenInSecrets, or else in its volume context.
const tokensKey = kubeletPrefix + "serviceAccount.tokens"

// TokenFromRequest returns the pod's token for the API server from the secrets of a publish request or, if it is not there, from its volume
// context. The error names the field and holds no part of a token.
func TokenFromRequest(secrets, volumeContext map[string]string) (Token, error) {
	at, text := field.NewPath("secrets").Key(tokensKey), secrets[tokensKey]
	if text == "" {
		at, text = field.NewPath("volume_context").Key(tokensKey), volumeContext[tokensKey]
	}
	const fix = `the CSIDriver object must have tokenRequests: [{audience: ""}] and requiresRepublish: true`
	if text == "" {
		return Token{}, field.Required(at, fix)
	}
	var byAudience map[string]struct {
		Token               string    `json:"token"`
		ExpirationTimestamp time.Time `json:"expirationTimestamp"`
	}
	// The decoder's error may quote the text.
	if err := json.Unmarshal([]byte(text), &byAudience); err != nil {
		return Token{}, field.Invalid(at, fmt.Sprintf("a string of %d bytes", len(text)), "must be a JSON object of tokens by audience")
	}
	token, ok := byAudience[""]
	switch {
	case !ok:
		return Token{}, field.Required(at.Key(""), fix)
	case token.Token == "" || token.ExpirationTimestamp.IsZero():
		return Token{}, field.Invalid(at.Key(""), "an object", "must have token and expirationTimestamp")
	}
	return NewToken(token.Token, token.ExpirationTimestamp), nil
}
