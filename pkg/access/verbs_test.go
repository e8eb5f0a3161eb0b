package access

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// TestVerbsAreAskedTogether: with --identity=pod a new volume needs get, list and watch, and a publish waits for one round trip.
func TestVerbsAreAskedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rtt = 10 * time.Millisecond
		changed := make(chan struct{}, 100)
		a, err := New(Options{
			Reviews: Reviews{
				Ask: func(context.Context, volume.ServiceAccount, volume.Ref, string, volume.Token) (bool, error) {
					<-time.After(rtt)
					return true, nil
				},
				Verbs: []string{"get", "list", "watch"},
			},
			MaxAge:  30 * time.Second,
			Changed: func(volume.ServiceAccount, volume.Ref) { changed <- struct{}{} },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		began, p := time.Now(), volume.Pod{Namespace: "ns", Name: "p", UID: "u", ServiceAccount: "sa"}
		ref := volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "a"}
		for {
			if verdict, _ := a.Admit(p, ref, began); verdict == Allowed {
				break
			}
			<-changed
		}
		if took := time.Since(began); took > rtt {
			t.Errorf("admitted after %v, %d round trips", took, took/rtt)
		}
	})
}
