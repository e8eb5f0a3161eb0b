package suite

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// testRolloutPage runs the commands of docs/rollout.md in their order, for pods with the volume that the page shows. None of them reads an
// older value for a moment, also when the canary's values become those of the stable object, and when the canary goes. Then the command takes
// a bad canary back.
func testRolloutPage(t *testing.T) {
	page := read(t, "../../../../docs/rollout.md")
	n := newNamespace(t)
	n.setConfigMap("app", object{"app.yaml": "first"})
	var pods []*pod
	const app = mountDir + "app/app.yaml"
	for _, name := range []string{"a", "b", "c"} {
		spec := newPod(name, refvol("app", pageVolume(t, page)))
		spec.Spec.Containers[0].Args = []string{"obey", app}
		pods = append(pods, n.create(spec))
	}
	awaitReady(pods...)
	say := func(want string) {
		t.Helper()
		for _, p := range pods {
			p.awaitText(app, want, podTimeout)
		}
	}
	commands := pageCommands(page)
	if len(commands) < 12 {
		t.Fatalf("the page has %d commands: %q", len(commands), commands)
	}
	file := filepath.Join(t.TempDir(), "app.yaml")
	must.Do(t, os.WriteFile(file, []byte("second"), 0o600))
	s := newShell(n, "-n shop", "-n "+n.name, "--from-file=app.yaml", "--from-file="+file)
	for _, command := range commands {
		run := command
		if strings.HasPrefix(command, "kubectl refvol rollout configmap/") {
			run += " --every=1s"
		}
		t.Logf("%s\n%s", run, s.output(run))
		switch { // what the page says beside its commands
		case strings.HasPrefix(command, "kubectl refvol rollout configmap/app-canary"):
			say("second")
			n.patchConfigMap("app", `{"data":{"app.yaml":"second"}}`)
			s.output("kubectl refvol converged configmap/app -n shop") // the next command takes the canary from some pods
		case strings.HasPrefix(command, "kubectl annotate configmap app-canary"): // the revert, and then the end of the canary
			say("second")
			s.output("kubectl delete configmap app-canary")
		case strings.HasSuffix(command, "--to 0%"):
			n.patchConfigMap("app", `{"data":{"app.yaml":"third"}}`)
		case strings.HasPrefix(command, "kubectl refvol rollout configmap/app "):
			say("third")
		}
	}
	wantTexts := func(above int) { // of the pods above a place
		t.Helper()
		for _, p := range pods {
			if volume.RolloutPlace(p.UID) <= above {
				continue
			}
			h := p.awaitHistory("the third text", func(h history) bool { return h.has("third", app) })
			if p.judge(h); len(h) != 3 {
				t.Errorf("%s has read %+v, want first, second and third", p.Name, h)
			}
		}
	}
	wantTexts(0)

	n.put(kindConfigMap, "app-canary", contents{text: object{"app.yaml": "bad"}, annotations: object{volume.CanaryAnnotation: "0%"}})
	share := n.awaitBad(n.rollout(1, "app-canary", "--steps=1,100%", "--every=5m"))
	if now := s.output(`kubectl get configmap app-canary --output=jsonpath='{.metadata.annotations.refvol\.dev/canary}'`); now != "0%" {
		t.Fatalf("the command has left the bad canary at %q", now)
	}
	say("third") // also in the pods of the share, which run again
	wantTexts(share)
}

// pageVolume returns the attributes of the page's first volume.
func pageVolume(t *testing.T, page string) attributes {
	t.Helper()
	blocks := doclines.Blocks(page, "yaml")
	var shown struct {
		Attributes attributes `json:"volumeAttributes"`
	}
	if len(blocks) == 0 || yaml.Unmarshal([]byte(blocks[0]), &shown) != nil || len(shown.Attributes) == 0 {
		t.Fatal("the page shows no volumeAttributes")
	}
	return shown.Attributes
}

// pageCommands returns the commands of the page, and those of kubectl and rollout that its text names, in order.
func pageCommands(page string) (commands []string) {
	named := regexp.MustCompile("`(kubectl (?:annotate|label) [^`]*configmap [^`]*)`|`(rollout (?:status|pause|resume|abort)[^`]*)`")
	for _, part := range doclines.Parts(page) {
		if part.Language == "sh" {
			commands = append(commands, doclines.Commands(part.Text)...)
		}
		if part.IsBlock {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(part.Text, -1) {
			if m[2] != "" {
				m[2] = "kubectl refvol " + m[2]
			}
			commands = append(commands, m[1]+m[2])
		}
	}
	return commands
}
