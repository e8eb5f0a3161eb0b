package publisher

import (
	"testing"
)

func TestTheKubeletsDirectoryMayBeSpelledBadly(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.KubeletDir += "/./" }, func(e *env) {
		e.run()
		e.objects.put(configMap("app"), "a", "1")
		e.publish(e.request("v1"))
	})
}
