package manager

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// refusal returns an answer of a code that asks for a pause of some seconds, 0 for none.
func refusal(code int32, seconds int32) error {
	status := metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: metav1.StatusReasonInternalError}
	switch code {
	case http.StatusUnauthorized:
		status.Reason = metav1.StatusReasonUnauthorized
	case http.StatusForbidden:
		status.Reason = metav1.StatusReasonForbidden
	case http.StatusTooManyRequests:
		status.Reason = metav1.StatusReasonTooManyRequests
	case http.StatusServiceUnavailable:
		status.Reason = metav1.StatusReasonServiceUnavailable
	}
	if seconds > 0 {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: seconds}
	}
	return &apierrors.StatusError{ErrStatus: status}
}

func (e *env) refuseAll(err error) {
	e.api.set(func() { e.api.refuse = func(apiRequest) error { return err } })
}

// TestLastingRefusals counts what a node sends to a server that refuses
// everything for long. Each object sent a request every two seconds.
func TestLastingRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		err     error
		objects int
		// most is how many requests a minute there may be, after the first four minutes.
		most int
	}{
		"no connection":         {syscall.ECONNREFUSED, 1000, 60},
		"connections break":     {syscall.ECONNRESET, 100, 60},
		"unauthorized":          {refusal(401, 0), 100, 4},
		"too many requests":     {refusal(429, 0), 100, 4},
		"too many, come later":  {refusal(429, 10), 100, 8},
		"unavailable":           {refusal(503, 0), 100, 4},
		"internal error":        {refusal(500, 0), 100, 4},
		"forbidden, of objects": {refusal(403, 0), 100, 100 * 2 * 2},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				e.refuseAll(tc.err)
				e.RegisterPod(pod("p"), "v", secretRefs("s", tc.objects))
				after(4 * time.Minute)
				before := len(e.asked())
				after(time.Minute)
				if n := len(e.asked()) - before; n == 0 || n > tc.most {
					t.Errorf("%d requests in a minute, want 1 to %d", n, tc.most)
				}
			})
		})
	}
}

// TestRetryAfterIsNotObeyedInLockstep has many nodes told at the same moment to come back
// after five seconds. Of 200 objects all came back within the same 0.3 s.
func TestRetryAfterIsNotObeyedInLockstep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 40
		begin := time.Now()
		var mu sync.Mutex
		var back []time.Duration
		for range nodes {
			e := newEnv(t, Watch)
			e.refuseAll(refusal(429, 5))
			e.RegisterPod(pod("p"), "v", secretRefs("s", 5))
			defer e.stop()
			synctest.Wait()
			comesBack := sync.OnceFunc(func() {
				mu.Lock()
				defer mu.Unlock()
				back = append(back, time.Since(begin))
			})
			e.api.set(func() { e.api.refuse = func(apiRequest) error { comesBack(); return refusal(429, 5) } })
		}
		after(10 * time.Second)
		if len(back) != nodes {
			t.Fatalf("%d nodes came back, want %d", len(back), nodes)
		}
		first, last := slices.Min(back), slices.Max(back)
		if first < 5*time.Second || last > 7500*time.Millisecond || last-first < time.Second {
			t.Errorf("the nodes came back between %s and %s, want from 5 s to 7.5 s, at random", first, last)
		}
	})
}

// TestOneObjectProbes: while a scope backs off, one object asks at a time, and another one
// each time; with the first success all others follow.
func TestOneObjectProbes(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		refs := secretRefs("s", 50)
		e.refuseAll(refusal(503, 0))
		e.RegisterPod(pod("p"), "v", refs)
		for _, ref := range refs {
			e.wantGetErr(ref, ErrNotSynced)
		}
		synctest.Wait()
		before := len(e.asked())
		after(2 * time.Minute)
		probes := e.asked()[before:]
		distinct := map[volume.Ref]bool{}
		for _, ref := range probes {
			distinct[ref] = true
		}
		if len(probes) < 12 || len(probes) > 32 || len(distinct) < len(probes)-1 {
			t.Errorf("%d probes of %d objects, want some twenty, each of another object", len(probes), len(distinct))
		}
		e.api.set(func() { e.api.refuse = nil })
		after(maxOwnPause)
		after(time.Second)
		for _, ref := range refs {
			if _, err := e.GetObject(ref); !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v, want that it is known to be absent", ref, err)
			}
		}
	})
}

// TestARefusalOfOneConcernsNoOther: 1 of 30 accounts has a dead token, and requests for
// Secrets fail. ConfigMaps and other accounts are served as without that.
func TestARefusalOfOneConcernsNoOther(t *testing.T) {
	asPods(t, []ChangeDetection{Watch}, func(t *testing.T, e *env, tokens *accounts) {
		dead := podOf("", "account-0").Account()
		e.api.set(func() {
			e.api.refuse = func(r apiRequest) error {
				switch {
				case r.account == dead:
					return refusal(401, 0)
				case r.ref.Kind == volume.Secret:
					return refusal(500, 0)
				}
				return nil
			}
		})
		for minute := range 3 {
			for i := range 30 {
				account := fmt.Sprint("account-", i)
				tokens.give(podOf("", account).Account())
				e.RegisterPod(podOf(types.UID(account), account), fmt.Sprint("v", minute), []volume.Ref{
					secretRef(fmt.Sprint("s-", minute)), configMapRef(fmt.Sprint("c-", minute)),
				})
			}
			after(10 * time.Millisecond)
			for i := range 30 {
				_, err := e.Manager.GetObject(podOf("", fmt.Sprint("account-", i)), configMapRef(fmt.Sprint("c-", minute)))
				if i == 0 && !apierrors.IsUnauthorized(err) || i > 0 && !apierrors.IsNotFound(err) {
					t.Errorf("minute %d, account %d: %v", minute, i, err)
				}
			}
			after(time.Minute)
		}
	})
}

// TestARenewedCredentialIsTriedAtOnce: the backoff was the old one's.
func TestARenewedCredentialIsTriedAtOnce(t *testing.T) {
	asPods(t, []ChangeDetection{Watch}, func(t *testing.T, e *env, _ *accounts) {
		e.refuseAll(refusal(401, 0))
		p, ref := podOf("p", "a"), secretRef("db")
		e.api.put(secret("db", "v1"))
		e.RegisterPod(p, "v", []volume.Ref{ref})
		after(5 * time.Minute)
		e.api.set(func() { e.api.refuse = nil })
		e.Renewed(p.Account())
		synctest.Wait()
		e.wantValue(p, ref, "v1")
	})
}

// TestAPublishEndsThePauseOfAnObject: a right that is given makes the next publish succeed,
// however long the object was refused.
func TestAPublishEndsThePauseOfAnObject(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.refuseAll(refusal(403, 0))
		e.RegisterPod(pod("running"), "v", []volume.Ref{ref})
		after(5 * time.Minute)
		e.api.set(func() { e.api.refuse = nil })
		e.publish("new", ref)
		synctest.Wait()
		e.wantGet(ref, v, "1")
	})
}

// TestWhatAnObjectWaitsFor: one that never got to send a request says why.
func TestWhatAnObjectWaitsFor(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.refuseAll(refusal(503, 60))
		e.RegisterPod(pod("p"), "v", secretRefs("s", 1))
		synctest.Wait()
		e.RegisterPod(pod("q"), "v", []volume.Ref{secretRef("b")})
		synctest.Wait()
		if _, err := e.GetObject(secretRef("b")); !apierrors.IsServiceUnavailable(err) || !errors.Is(err, ErrNotSynced) {
			t.Errorf("got %v, want that the server is unavailable", err)
		}
	})
}

// TestReach tells which failure concerns whom.
func TestReach(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		for _, tc := range []struct {
			err  error
			want backoff.Level
		}{
			{syscall.ECONNREFUSED, backoff.Node},
			{refusal(401, 0), backoff.Credential},
			{refusal(429, 0), backoff.Credential},
			{refusal(500, 0), backoff.Kind},
			{refusal(503, 0), backoff.Kind},
			{refusal(403, 0), backoff.Object},
			{tooLarge(), backoff.Object},
			{apierrors.NewResourceExpired("old"), backoff.Object},
			{apierrors.NewNotFound(schema.GroupResource{}, "a"), backoff.Object},
		} {
			e.refuseAll(tc.err)
			_, err := e.getOnce(t)
			if got := reach(err); got != tc.want {
				t.Errorf("%v: got level %d, want %d", err, got, tc.want)
			}
		}
	})
}

// getOnce sends one request, by the real client, and returns its error.
func (e *env) getOnce(t *testing.T) (*volume.Object, error) {
	t.Helper()
	source := newSources(e.api.client())[volume.Secret]
	return source.get(t.Context(), "ns", "a", metav1.GetOptions{})
}

// TestAWaitingPublishIsNotTheOnlyProbe: an object that was refused has no pause of
// its own, so its publish would always come first.
func TestAWaitingPublishIsNotTheOnlyProbe(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		bad, ref := secretRef("bad"), secretRef("good")
		v := e.api.put(secret("good", "1"))
		e.refuseAll(refusal(401, 0))
		e.publish("p", bad)
		e.RegisterPod(pod("q"), "v", []volume.Ref{ref})
		after(10 * time.Second)
		e.api.set(func() {
			e.api.refuse = func(r apiRequest) error {
				if r.ref == bad {
					return refusal(401, 0)
				}
				return nil
			}
		})
		after(4 * maxPause)
		e.wantGet(ref, v, "1")
	})
}

// TestKindsTakeTurnsToProbe: what holds up both kinds is over for both when one of them
// succeeds, and until then neither must wait for the other.
func TestKindsTakeTurnsToProbe(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.refuseAll(refusal(401, 0))
		e.RegisterPod(pod("p"), "v", []volume.Ref{secretRef("a"), configMapRef("a")})
		after(10 * maxPause)
		e.api.mu.Lock()
		defer e.api.mu.Unlock()
		for i := 2; i < len(e.api.seen); i++ {
			if kind := e.api.seen[i].ref.Kind; kind == e.api.seen[i-1].ref.Kind && kind == e.api.seen[i-2].ref.Kind {
				t.Errorf("requests %d to %d were all for a %s", i-2, i, kind)
			}
		}
		if n := len(e.api.seen); n < 10 {
			t.Errorf("%d requests, want ten at least", n)
		}
	})
}

// What has failed for accounts that are gone is not kept.
func TestPausesOfGoneAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := scopes{}
		for i := range 1000 {
			gone := &candidate{account: volume.Account{Namespace: "ci", Name: fmt.Sprint(i)}}
			s.learn(&opening{candidate: gone, began: time.Now()}, apierrors.NewUnauthorized("deleted"), backoff.Credential)
			<-time.After(time.Minute)
		}
		if most := int(unused/time.Minute) + 1; len(s) > most {
			t.Errorf("%d pauses are kept of 1000, want up to %d", len(s), most)
		}
	})
}
