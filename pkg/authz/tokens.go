package authz

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// ErrNoToken says that no published pod of a service account has a usable token, for example after a restart. Tokens are only in memory,
// and the kubelet brings new ones when it publishes again.
var ErrNoToken = errors.New("none of its pods has a token: the next republish brings one (the CSIDriver object must have tokenRequests and requiresRepublish)")

// Tokens holds the tokens of published pods, by service account. A token belongs to a pod. The API server refuses it after the pod's end,
// and then another pod's token is used. Tokens is safe for concurrent use. Its zero value holds no token.
//
// mu guards all of it.
type Tokens struct {
	mu       sync.Mutex
	accounts map[volume.ServiceAccount]*accountTokens
}

// accountTokens holds the tokens of one account. It exists while at least one pod holds a token.
type accountTokens struct {
	holders map[types.UID]*holder
}

// holder is a pod with its token.
type holder struct {
	volumes map[string]bool
	token   volume.Token
	// rejected is when the API server last refused the token; zero for never. The server may have been wrong, so the token is tried again
	// when there is no other.
	rejected time.Time
}

// Put stores the token of a pod for one of its volumes. It replaces an earlier token of the pod. Requests of the account may carry it until
// Drop was called for each of the pod's volumes. Put returns true if it is the account's first usable token.
func (t *Tokens) Put(pod volume.Pod, volumeID string, token volume.Token) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.of(pod.Account())
	first = len(w.usable()) == 0
	h := w.holders[pod.UID]
	if h == nil {
		h = &holder{volumes: map[string]bool{}}
		w.holders[pod.UID] = h
	}
	h.volumes[volumeID] = true
	if token.Reveal() != h.token.Reveal() {
		h.token, h.rejected = token, time.Time{}
	}
	t.tidy(pod.Account())
	return first && len(w.usable()) > 0
}

// Drop undoes Put for one volume. It is idempotent.
func (t *Tokens) Drop(pod volume.Pod, volumeID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.accounts[pod.Account()]
	if w == nil || w.holders[pod.UID] == nil {
		return
	}
	delete(w.holders[pod.UID].volumes, volumeID)
	if len(w.holders[pod.UID].volumes) == 0 {
		delete(w.holders, pod.UID)
	}
	t.tidy(pod.Account())
}

// Ready returns nil if the account has a usable token, or else an error that wraps ErrNoToken.
func (t *Tokens) Ready(account volume.ServiceAccount) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.accounts[account]; w == nil || len(w.usable()) == 0 {
		return noToken(account)
	}
	return nil
}

func noToken(account volume.ServiceAccount) error {
	return fmt.Errorf("service account %s: %w", account, ErrNoToken)
}

// take returns the usable tokens of an account, the best one first.
func (t *Tokens) take(account volume.ServiceAccount) []volume.Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.accounts[account]
	if w == nil {
		return nil
	}
	usable := w.usable()
	// Tokens that were never rejected come first, then those that were rejected longest ago. Among equals, the one that expires last comes
	// first.
	slices.SortFunc(usable, func(a, b *holder) int {
		return cmp.Or(a.rejected.Compare(b.rejected), b.token.Expires.Compare(a.token.Expires))
	})
	tokens := make([]volume.Token, 0, len(usable))
	for _, h := range usable {
		tokens = append(tokens, h.token)
	}
	return tokens
}

// reject records that the API server did not accept a token.
func (t *Tokens) reject(account volume.ServiceAccount, token volume.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.accounts[account]
	if w == nil {
		return
	}
	for _, h := range w.holders {
		if h.token == token {
			h.rejected = time.Now()
		}
	}
}

// of returns the tokens of an account, and creates the entry if there is none. The caller holds mu and calls tidy.
func (t *Tokens) of(account volume.ServiceAccount) *accountTokens {
	w := t.accounts[account]
	if w == nil {
		w = &accountTokens{
			holders: map[types.UID]*holder{},
		}
		if t.accounts == nil {
			t.accounts = map[volume.ServiceAccount]*accountTokens{}
		}
		t.accounts[account] = w
	}
	return w
}

// tidy removes an account without pods. The caller holds mu.
func (t *Tokens) tidy(account volume.ServiceAccount) {
	if w := t.accounts[account]; w != nil && len(w.holders) == 0 {
		delete(t.accounts, account)
	}
}

// usable returns the pods whose tokens may be accepted, in no order. An expired token counts until it is also rejected, because this node's
// clock may be wrong.
func (w *accountTokens) usable() []*holder {
	now := time.Now()
	var usable []*holder
	for _, h := range w.holders {
		if h.token.Reveal() != "" && (h.rejected.IsZero() || now.Before(h.token.Expires)) {
			usable = append(usable, h)
		}
	}
	return usable
}

// ErrNotThePods says that a token does not belong to the pod.
var ErrNotThePods = errors.New("the token is not the pod's own")

// Check returns nil if a token states that it belongs to a pod, or an error that wraps ErrNotThePods. The token must name the pod's service
// account, and must not be bound to another pod. Only the API server can verify that the token is genuine.
func (t *Tokens) Check(pod volume.Pod, token volume.Token) error {
	var claims struct {
		Subject    string `json:"sub"`
		Kubernetes struct {
			Pod struct {
				UID types.UID `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(token.Reveal(), ".")
	if len(parts) != 3 {
		return fmt.Errorf("%w: it is not a JSON Web Token", ErrNotThePods)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil { // these errors may quote the token
		return fmt.Errorf("%w: it has no claims that can be read", ErrNotThePods)
	}
	if claims.Subject != userOf(pod.Account()) {
		return fmt.Errorf("%w: pod %s runs as service account %s, the token is that of %q", ErrNotThePods, pod, pod.Account(), claims.Subject)
	}
	if uid := claims.Kubernetes.Pod.UID; uid != "" && uid != pod.UID {
		return fmt.Errorf("%w: it is bound to another pod than %s with the UID %s", ErrNotThePods, pod, pod.UID)
	}
	return nil
}
