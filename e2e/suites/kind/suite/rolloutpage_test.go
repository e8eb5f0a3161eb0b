package suite

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// pageNamespace is the namespace in the commands of docs/rollout.md.
const pageNamespace = "shop"

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
	for _, command := range commands {
		t.Log(command)
		command = strings.ReplaceAll(command, "-n "+pageNamespace, "-n "+n.name)
		args := words(command)
		switch {
		case strings.HasPrefix(command, "create configmap app-canary") && strings.HasSuffix(command, "| kubectl apply -f -"):
			canary := configMap("app-canary", object{"app.yaml": "second"})
			canary.Annotations = pairs(args)
			if _, err := n.client.CoreV1().ConfigMaps(n.name).Create(t.Context(), canary, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		case args[0] == "annotate":
			n.patchConfigMap(objectOf(args), object{}, map[string]any{"annotations": pairs(args)})
		case args[0] == "label":
			n.patchConfigMap(objectOf(args), object{}, map[string]any{"labels": pairs(args)})
		case args[0] == "refvol":
			if args[1] == "rollout" && strings.Contains(args[2], "/") {
				args = append(args, "--every=1s")
			}
			if !strings.Contains(command, "-n ") {
				args = append(args, "-n", n.name)
			}
			if r := kubectlRefvol(t, args[1:]...); r.status != 0 {
				t.Fatalf("%q: status %d\n%s%s", args, r.status, r.stdout, r.stderr)
			}
		default:
			t.Fatalf("the test does not know how to run %q", command)
		}
		switch { // what the page says beside its commands
		case strings.HasPrefix(command, "refvol rollout configmap/app-canary"):
			say("second")
			n.patchConfigMap("app", object{"app.yaml": "second"}, nil)
		case strings.HasPrefix(command, "annotate configmap app-canary"): // the revert, and then the end of the canary
			say("second")
			if err := n.client.CoreV1().ConfigMaps(n.name).Delete(t.Context(), "app-canary", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		case strings.HasSuffix(command, "--to 0%"):
			n.patchConfigMap("app", object{"app.yaml": "third"}, nil)
		case strings.HasPrefix(command, "refvol rollout configmap/app "):
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
	found := regexp.MustCompile("(?m)^ +kubectl (.*\\|\n.*|.*)$|`kubectl (annotate|label)( [^`]*configmap [^`]*)`|`rollout ((?:status|pause|resume|abort)[^`]*)`").FindAllStringSubmatch(page, -1)
	for _, m := range found {
		switch {
		case m[1] != "":
			commands = append(commands, m[1])
		case m[2] != "":
			commands = append(commands, m[2]+m[3])
		default:
			commands = append(commands, "refvol rollout "+m[4])
		}
	}
	return commands
}

// pairs returns the annotations or labels that a command line sets.
func pairs(args []string) map[string]string {
	set := map[string]string{}
	for _, arg := range args {
		if key, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(key, "refvol.dev/") {
			set[key] = value
		}
	}
	return set
}

// objectOf returns the name of the ConfigMap in a command line.
func objectOf(args []string) string {
	for i := range args[:len(args)-1] {
		if args[i] == "configmap" {
			return args[i+1]
		}
	}
	return ""
}

// patchConfigMap changes data and metadata of a ConfigMap, and leaves everything else.
func (n *namespace) patchConfigMap(name string, data object, metadata map[string]any) {
	n.t.Helper()
	change := map[string]any{"data": data}
	if metadata != nil {
		change["metadata"] = metadata
	}
	patch, err := json.Marshal(change)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.client.CoreV1().ConfigMaps(n.name).Patch(n.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}
