package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// ErrNoToken reports that no published pod of a service account has a token that is still
// good, as after a restart: tokens are in memory only, and the kubelet brings new ones by
// publishing again.
var ErrNoToken = errors.New("no pod of it has a token: the next republish brings one (the CSIDriver object must have tokenRequests and requiresRepublish)")

// Tokens holds the tokens of published pods, by service account. A token is the pod's: it
// dies with the pod at the API server, so that another pod's takes its place. It is safe
// for concurrent use, and its zero value holds none.
//
// mu guards all of it.
type Tokens struct {
	mu       sync.Mutex
	accounts map[volume.Account]*wallet
}

// wallet is what is known of one account; it lasts as long as it has holders or waiters.
type wallet struct {
	holders map[types.UID]*holder
	// arrived is closed, and replaced, when a token arrives; waiting counts who waits for
	// that.
	arrived chan struct{}
	waiting int
}

// holder is a pod with its token.
type holder struct {
	volumes map[string]bool
	token   volume.Token
	// rejected is when the API server last refused the token as none of its own; the zero
	// time is never. It may have been wrong, so it is tried again when there is no other.
	rejected time.Time
}

// Put has requests for what the pod's account may read carry the pod's token, in place of
// an earlier one of that pod, until each volume that it was put for is dropped. It returns
// true if there was no token of the account that could be used.
func (t *Tokens) Put(pod volume.Pod, volumeID string, token volume.Token) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.wallet(pod.Account())
	first = len(w.usable()) == 0
	h := w.holders[pod.UID]
	if h == nil {
		h = &holder{volumes: map[string]bool{}}
		w.holders[pod.UID] = h
	}
	h.volumes[volumeID] = true
	if token.Reveal() != h.token.Reveal() {
		h.token, h.rejected = token, time.Time{}
		close(w.arrived)
		w.arrived = make(chan struct{})
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

// Await returns nil once there is a token of the account that can be used, else an error
// that wraps ErrNoToken and that of ctx when this ends.
func (t *Tokens) Await(ctx context.Context, account volume.Account) error {
	t.mu.Lock()
	w := t.wallet(account)
	w.waiting++
	defer func() {
		w.waiting--
		t.tidy(account)
		t.mu.Unlock()
	}()
	for len(w.usable()) == 0 {
		arrived := w.arrived
		t.mu.Unlock()
		select {
		case <-arrived:
		case <-ctx.Done():
		}
		t.mu.Lock()
		if ctx.Err() != nil {
			return noToken(account, ctx.Err())
		}
	}
	return nil
}

// Ready returns nil if there is a token of the account that can be used, else an error that
// wraps ErrNoToken.
func (t *Tokens) Ready(account volume.Account) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.accounts[account]; w == nil || len(w.usable()) == 0 {
		return noToken(account, nil)
	}
	return nil
}

func noToken(account volume.Account, cause error) error {
	err := fmt.Errorf("service account %s: %w", account, ErrNoToken)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// take returns the tokens of an account that can be used, the best one first.
func (t *Tokens) take(account volume.Account) []volume.Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.accounts[account]
	if w == nil {
		return nil
	}
	usable := w.usable()
	// One that was not rejected, else whose rejection is the longest ago; then the one that
	// is good for the longest time.
	slices.SortFunc(usable, func(a, b *holder) int {
		return cmp.Or(a.rejected.Compare(b.rejected), b.token.Expires.Compare(a.token.Expires))
	})
	tokens := make([]volume.Token, 0, len(usable))
	for _, h := range usable {
		tokens = append(tokens, h.token)
	}
	return tokens
}

// reject notes that the API server did not accept a token.
func (t *Tokens) reject(account volume.Account, token volume.Token) {
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

// wallet returns that of an account, also of one without any token. The caller holds mu and
// calls tidy.
func (t *Tokens) wallet(account volume.Account) *wallet {
	w := t.accounts[account]
	if w == nil {
		w = &wallet{holders: map[types.UID]*holder{}, arrived: make(chan struct{})}
		if t.accounts == nil {
			t.accounts = map[volume.Account]*wallet{}
		}
		t.accounts[account] = w
	}
	return w
}

// tidy forgets an account without pods that nobody waits for. The caller holds mu.
func (t *Tokens) tidy(account volume.Account) {
	if w := t.accounts[account]; w != nil && len(w.holders) == 0 && w.waiting == 0 {
		delete(t.accounts, account)
	}
}

// usable returns the pods whose tokens may be accepted, in no order. One that has expired
// is of no use once it was rejected, and no sooner: this node's clock may be wrong.
func (w *wallet) usable() []*holder {
	now := time.Now()
	var usable []*holder
	for _, h := range w.holders {
		if h.token.Reveal() != "" && (h.rejected.IsZero() || now.Before(h.token.Expires)) {
			usable = append(usable, h)
		}
	}
	return usable
}
