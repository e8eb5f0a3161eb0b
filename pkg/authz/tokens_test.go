package authz

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

func podOf(uid types.UID) volume.Pod {
	return volume.Pod{Namespace: "shop", Name: string(uid), UID: uid, ServiceAccount: "web"}
}

func goodFor(secret string, d time.Duration) volume.Token {
	return volume.NewToken(secret, time.Now().Add(d))
}

// wantTokens compares the tokens with which requests of shop/web are tried, in order.
func wantTokens(t *testing.T, tokens *Tokens, want ...string) {
	t.Helper()
	got := tokens.take(web.Account())
	if len(got) != len(want) {
		t.Fatalf("%d tokens, want %q", len(got), want)
	}
	for i, token := range got {
		if token.Reveal() != want[i] {
			t.Errorf("token %d is %q, want %q", i, token.Reveal(), want[i])
		}
	}
	if err := tokens.Ready(web.Account()); errors.Is(err, ErrNoToken) != (len(want) == 0) {
		t.Errorf("Ready: %v with %d tokens", err, len(want))
	}
}

// A pod's token is replaced by its next one, exists as long as one of its volumes, and is not used for another account.
func TestTokens(t *testing.T) {
	tokens := &Tokens{}
	wantTokens(t, tokens)
	tokens.Drop(podOf("a"), "v1")
	if tokens.Put(podOf("z"), "v0", volume.Token{}) {
		t.Error("a pod without a token has the first one")
	}
	tokens.Drop(podOf("z"), "v0")
	if !tokens.Put(podOf("a"), "v1", goodFor("a1", time.Hour)) {
		t.Error("the first token is not told to be")
	}
	if tokens.Put(podOf("a"), "v2", goodFor("a2", time.Hour)) || tokens.Put(podOf("b"), "v3", goodFor("b1", 2*time.Hour)) {
		t.Error("another token is told to be the first")
	}
	wantTokens(t, tokens, "b1", "a2")
	other := podOf("c")
	other.ServiceAccount = "other"
	if !tokens.Put(other, "v4", goodFor("c1", 3*time.Hour)) {
		t.Error("the first token of another account is not told to be")
	}
	wantTokens(t, tokens, "b1", "a2")
	tokens.Drop(podOf("a"), "v1")
	tokens.Drop(podOf("a"), "none")
	wantTokens(t, tokens, "b1", "a2")
	tokens.Drop(podOf("a"), "v2")
	tokens.Drop(podOf("a"), "v2")
	wantTokens(t, tokens, "b1")
	tokens.Drop(podOf("b"), "v3")
	wantTokens(t, tokens)
	tokens.Drop(other, "v4")
	if len(tokens.accounts) > 0 {
		t.Errorf("%d accounts are left", len(tokens.accounts))
	}
}

// A rejected token is tried last, until its pod has a new one.
func TestRejectedTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := &Tokens{}
		a, b := goodFor("a1", 3*time.Hour), goodFor("b1", 2*time.Hour)
		tokens.Put(podOf("a"), "v", a)
		tokens.Put(podOf("b"), "v", b)
		wantTokens(t, tokens, "a1", "b1")
		tokens.reject(web.Account(), a)
		wantTokens(t, tokens, "b1", "a1")
		after(time.Second)
		tokens.reject(web.Account(), b)
		wantTokens(t, tokens, "a1", "b1")
		tokens.Put(podOf("a"), "v", a) // the same again
		tokens.Put(podOf("b"), "v", goodFor("b2", time.Hour))
		wantTokens(t, tokens, "b2", "a1")
		tokens.reject(web.Account(), b) // its pod has another one now
		wantTokens(t, tokens, "b2", "a1")
		tokens.reject(volume.ServiceAccount{Namespace: "shop", Name: "none"}, b)
	})
}

// An expired token is tried after all others that were not rejected, and is useless once it is rejected. The node's clock may be ahead, so
// it is tried once.
func TestTokensExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := &Tokens{}
		a := goodFor("a1", time.Hour)
		tokens.Put(podOf("a"), "v", a)
		after(time.Hour)
		wantTokens(t, tokens, "a1")
		b := goodFor("b1", -2*time.Second)
		if tokens.Put(podOf("b"), "v", b) {
			t.Error("another token is told to be the first")
		}
		wantTokens(t, tokens, "a1", "b1")
		tokens.reject(web.Account(), a)
		wantTokens(t, tokens, "b1")
		tokens.reject(web.Account(), b)
		wantTokens(t, tokens)
		if !tokens.Put(podOf("a"), "v", goodFor("a2", time.Hour)) {
			t.Error("the first token after all have expired is not told to be")
		}
		wantTokens(t, tokens, "a2")
		if tokens.Put(podOf("b"), "v", b) { // the same again
			t.Error("a token that is of no use is told to be the first")
		}
		wantTokens(t, tokens, "a2")
	})
}
