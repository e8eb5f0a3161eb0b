package publisher

import (
	"strings"
	"testing"
)

// If links cannot be created after the switch, the write fails although its files are visible.
func TestAWriteThatFailsAfterTheSwitchCounts(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		e.writes.set(nil, func() error { return errFault })
		e.objects.put(configMap("app"), "a", strings.Repeat("2", 5000))
		e.settle()
		// The last generation stays for its readers.
		if used := e.used(); used != taken(2, 1)+pageSize+2*inodeSize {
			t.Errorf("%d bytes counted, want what the files take now", used)
		}
		v := e.lookup("v1")
		if v.vol.files.Shown[configMap("app")] != e.objects.get(configMap("app")).Version {
			t.Error("an older answer would be taken for a newer one")
		}
	})
}
