package suite

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestRolloutPage runs the commands of docs/rollout.md in their order, for pods with the volume that the page shows. It runs with no other test,
// because the commands look at all nodes.
func TestRolloutPage(t *testing.T) {
	page := read(t, "../../../../docs/rollout.md")
	n := newNamespace(t)
	n.createConfigMap("app", object{"app.yaml": "first"})
	var pods []*pod
	for _, name := range []string{"a", "b", "c"} {
		pods = append(pods, n.create(newPod(name, refvol("app", pageVolume(t, page)))))
	}
	for _, p := range pods {
		p.awaitReady()
	}
	say := func(want string) {
		t.Helper()
		for _, p := range pods {
			p.awaitText(mountDir+"app/app.yaml", want, podTimeout)
		}
	}
	commands := pageCommands(page)
	if len(commands) < 12 {
		t.Fatalf("the page has %d commands: %q", len(commands), commands)
	}
	file := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(file, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
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
		case strings.HasPrefix(command, "kubectl annotate configmap app-canary"): // the revert, and then the end of the canary
			say("second")
			s.output("kubectl delete configmap app-canary")
		case strings.HasSuffix(command, "--to 0%"):
			n.patchConfigMap("app", `{"data":{"app.yaml":"third"}}`)
		case strings.HasPrefix(command, "kubectl refvol rollout configmap/app "):
			say("third")
		}
	}
}

// pageVolume returns the attributes of the page's first volume.
func pageVolume(t *testing.T, page string) attributes {
	t.Helper()
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(page)
	var volume struct {
		Attributes attributes `json:"volumeAttributes"`
	}
	if block == nil || yaml.Unmarshal([]byte(block[1]), &volume) != nil || len(volume.Attributes) == 0 {
		t.Fatal("the page shows no volumeAttributes")
	}
	return volume.Attributes
}

// pageCommands returns the kubectl commands of the page, and the subcommands of rollout that its text names, in order. A command that ends
// with | goes on in the next line.
func pageCommands(page string) (commands []string) {
	found := regexp.MustCompile("(?m)^ +(kubectl (?:.*\\|\n.*|.*))$|`(kubectl (?:annotate|label) [^`]*configmap [^`]*)`|`(rollout (?:status|pause|resume|abort)[^`]*)`").FindAllStringSubmatch(page, -1)
	for _, m := range found {
		if m[3] != "" {
			m[3] = "kubectl refvol " + m[3]
		}
		commands = append(commands, m[1]+m[2]+m[3])
	}
	return commands
}
