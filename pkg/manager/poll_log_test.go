package manager

import (
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/leak"
)

// TestNoValueOfAGetIsLogged looks for a value in the log of everything that happens to
// a Secret, at the highest verbosity.
func TestNoValueOfAGetIsLogged(t *testing.T) {
	const canary = leak.Value
	log := searchedLog(t)
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		past := e.api.rv
		e.api.put(secret("a", canary))
		e.known(ref)
		after(maxAge)
		v := e.api.put(secret("a", canary))
		e.refresh(ref)
		e.wantKnown(ref, v, canary)
		e.api.set(func() { e.api.behind, e.api.rv = past, past+1 }) // refused
		after(maxAge)
		e.refresh(ref)
	})
	text := log.String()
	if !strings.Contains(text, "Get failed") || !strings.Contains(text, errOlder.Error()) {
		t.Fatalf("the log isn't the one looked for:\n%s", text)
	}
}

func TestFailedGetsAreLoggedOnce(t *testing.T) {
	for _, tc := range outages() {
		t.Run(tc.name, func(t *testing.T) {
			for _, detection := range []ChangeDetection{Cache, Get} {
				log := captureLog(t, "0")
				inBubbleWith(t, detection, func(t *testing.T, e *env) {
					refs := hundred()
					e.RegisterPod(pod("p"), "v", refs)
					e.Refresh(refs)
					after(maxAge)
					e.api.set(func() {
						e.api.refuse = func(r apiRequest) error {
							if r.ref == nodeRef {
								return nil
							}
							return tc.err
						}
					})
					for range 3 {
						e.Refresh(refs)
						after(maxAge)
					}
					e.answerWith(nil)
					e.Refresh(refs)
					after(maxAge)
				})
				tc.check(t, log, "Get failed")
			}
		})
	}
}
