package integration

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// records returns the lines of the plugin's log that it has written since a position, and the
// position after them. A line with a key twice fails the test.
func (n *node) records(since int) ([]harness.LogLine, int) {
	n.t.Helper()
	log, err := os.ReadFile(n.LogPath())
	if err != nil {
		n.t.Fatal(err)
	}
	end := strings.LastIndexByte(string(log), '\n') + 1
	records, err := harness.ParseLog(string(log[since:end]))
	if err != nil {
		n.t.Error(err)
	}
	return records, end
}

// says waits until the log since a position has a line with a message and fields, checks that it
// is the only one, and that it holds some texts.
func (n *node) says(since int, message string, fields map[string]string, texts ...string) {
	n.t.Helper()
	var found []harness.LogLine
	harness.Eventually(n.t, soon, func() error {
		records, _ := n.records(since)
		found = slices.DeleteFunc(records, func(r harness.LogLine) bool { return !r.Is(message, fields) })
		if len(found) == 0 {
			return fmt.Errorf("no line %q with %v in\n%s", message, fields, n.LogTail())
		}
		return nil
	})
	if len(found) > 1 {
		n.t.Errorf("%d lines %q with %v: %v", len(found), message, fields, found)
	}
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(found[0].Fields), text) {
			n.t.Errorf("the line %v lacks %q", found[0], text)
		}
	}
}

// TestLogTellsEachChangeOnce: a person can follow a volume by the log at -v=2.
func TestLogTellsEachChangeOnce(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "-v=2", "--logging-format="+format, "--publish-wait=1s")
			app := n.configMap("app", map[string]string{"key": n.canary()})
			db := n.secret("db", map[string]string{"key": n.canary()})
			v := n.volume(map[string]string{"sources": `[{configMap: {name: app}}, {secret: {name: db, items: [{key: key, path: password}]}}]`})
			of := map[string]string{"volumeID": v.ID(), "pod": n.namespace + "/" + v.Pod, "volume": v.Name}
			at := func(kind, name, version string) string {
				return fmt.Sprintf("%s %s/%s at %s", kind, n.namespace, name, version)
			}

			for range 3 { // the kubelet publishes again after its restart
				n.publishesSoon(v)
			}
			n.says(0, "Published volume", of, at("ConfigMap", "app", app.ResourceVersion), at("Secret", "db", db.ResourceVersion))

			_, begin := n.records(0)
			value := n.canary()
			changed := n.secret("db", map[string]string{"key": value})
			n.arrives(v, "password", value, soon)
			n.says(begin, "Updated volume", of, at("ConfigMap", "app", app.ResourceVersion), at("Secret", "db", changed.ResourceVersion),
				fmt.Sprintf("Secret %s/db changed, it was at %s", n.namespace, db.ResourceVersion))

			_, begin = n.records(0)
			n.deleteConfigMap("app")
			n.says(begin, "Volume does not show what it should", of, `ConfigMap "`+n.namespace+`/app"`)
			value = n.value("app")
			n.arrives(v, "key", value, soon)
			n.says(begin, "Volume is current again", of)
			n.says(begin, "Updated volume", of, fmt.Sprintf("ConfigMap %s/app was deleted and created again", n.namespace))

			_, begin = n.records(0)
			n.mustUnpublish(v)
			n.mustUnpublish(v)
			n.says(begin, "Unpublished volume", of, "the kubelet asked for it")

			late := n.short("late")
			wantStatus(t, n.finalAnswer(late), codes.NotFound)
			of = map[string]string{"volumeID": late.ID(), "pod": n.namespace + "/" + late.Pod}
			failed := maps.Clone(of)
			failed["code"] = "NotFound" // on a busy machine Unavailable may be before it
			n.says(begin, "CSI call failed", failed, `ConfigMap "`+n.namespace+`/late"`)
			n.value("late")
			n.publishesSoon(late)
			n.says(begin, "Published volume", of)

			n.mustKill()
			n.mustStart()
			n.says(begin, "Took over a mounted volume", of, "ConfigMap "+n.namespace+"/late at ")
		})
	}
}
