package manager

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// TestAnOldBookmarkProvesNothing: one of a version before the known one is of a server that lags behind.
func TestAnOldBookmarkProvesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		v := e.api.put(secret("a", "1"))
		e.wantGet(ref, v, "1")
		after(bookmarkInterval / 2)
		e.api.set(func() { e.api.next = bookmark(ref, 1) })
		e.api.put(secret("a", "2")) // its event is lost
		synctest.Wait()
		e.wantStatus(Present, v, bookmarkInterval/2, true)
		e.api.set(func() { e.api.next = bookmark(ref, 1000) })
		e.api.put(secret("a", "3"))
		synctest.Wait()
		e.wantStatus(Present, v, 0, true)
	})
}

// TestARefusalEndsNoPauseOfAKind: the server refuses one Secret and fails for all others, which must not all ask
// again each time it refuses. They send as few requests as without the refusal.
func TestARefusalEndsNoPauseOfAKind(t *testing.T) {
	count := func(code int32) (requests int) {
		inBubble(t, func(t *testing.T, e *env) {
			refs := secretRefs("s", 20)
			e.api.set(func() {
				e.api.refuse = func(r apiRequest) error {
					if r.ref == refs[0] {
						return refusal(code, 0)
					}
					return refusal(500, 0)
				}
			})
			e.RegisterPod(pod("p"), "v", refs)
			after(10 * time.Minute)
			for _, ref := range refs[1:] {
				requests += len(e.api.requests(ref))
			}
		})
		return requests
	}
	alone, beside := count(500), count(403)
	if beside > alone+alone/2 {
		t.Errorf("%d requests in ten minutes, and %d beside an object that is refused", alone, beside)
	}
	t.Logf("%d requests, %d beside a refusal", alone, beside)
}
