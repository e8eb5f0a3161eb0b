package volume

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ServiceAccount names a service account. The zero Account is none.
type ServiceAccount struct{ Namespace, Name string }

// String returns namespace/name.
func (a ServiceAccount) String() string { return a.Namespace + "/" + a.Name }

// Account returns the service account that the pod runs as.
func (p Pod) Account() ServiceAccount {
	return ServiceAccount{Namespace: p.Namespace, Name: p.ServiceAccount}
}

// Token is a pod's own token of its service account, as the kubelet hands it over. No way
// of formatting or marshalling a Token, or what holds one, shows it: it is behind a pointer
// that nothing follows. The zero Token is none.
type Token struct {
	secret *string
	// Expires is when the API server ceases to accept it.
	Expires time.Time
}

// NewToken returns a token that is accepted until a time.
func NewToken(secret string, expires time.Time) Token {
	return Token{secret: &secret, Expires: expires}
}

// Reveal returns the token itself, "" of the zero Token. It belongs into a header of a
// request to the API server, and nowhere else.
func (t Token) Reveal() string {
	if t.secret == nil {
		return ""
	}
	return *t.secret
}

// Same says whether two tokens are the same text.
func (t Token) Same(other Token) bool { return t.Reveal() == other.Reveal() }

// tokensKey is where the kubelet puts a pod's tokens, by audience: in the secrets of a
// request if the CSIDriver object has serviceAccountTokenInSecrets, else in its volume
// context.
const tokensKey = kubeletPrefix + "serviceAccount.tokens"

// TokenFromRequest returns the pod's token for the API server from the secrets of a publish
// request or, if they have none, from its volume context. The error names the field and
// holds nothing of a token.
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
	// What the decoder complains of may quote the text.
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
