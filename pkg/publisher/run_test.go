package publisher

import (
	"fmt"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

func TestResync(t *testing.T) {
	inBubble(t, func(e *env) {
		const volumes = 50
		var refs []volume.Ref
		for i := range volumes {
			name := fmt.Sprintf("app-%d", i)
			refs = append(refs, configMap(name))
			e.objects.put(configMap(name), "a", "1")
			e.publish(e.request(fmt.Sprintf("v%d", i), "configMap", name))
			e.objects.takeReads(configMap(name))
		}
		begin := time.Now()
		after(2*testResync - 1)
		moments := map[time.Duration]bool{}
		for _, ref := range refs {
			at := e.objects.takeReads(ref)
			if len(at) != 1 {
				t.Fatalf("%s was read %d times", ref, len(at))
			}
			took := at[0].Sub(begin)
			if took < testResync || took >= 2*testResync {
				t.Errorf("%s was read after %v", ref, took)
			}
			moments[took/(10*time.Second)] = true
		}
		if len(moments) < 3 {
			t.Errorf("all were read at once, in %v", moments)
		}
	})
}

// An event may be lost, or the mount table may change without one.
func TestResyncMendsWhatNoEventTold(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.objects.Subscribe(func(volume.ServiceAccount, volume.Ref) {})
		e.objects.put(configMap("app"), "a", "2")
		after(2 * testResync)
		e.wantFiles(r, "a", "2")
	})
}
