package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/check"
)

// The values of --identity.
const (
	IdentityPlugin = "plugin"
	IdentityPod    = "pod"
	IdentityNode   = "node"
)

// PodVerbs returns the rights to an object that a pod's service account needs with --identity=pod. The last one is what an
// open watch, or the next request, needs.
func PodVerbs(watches bool) []string {
	if watches {
		return []string{"get", "list", "watch"}
	}
	return []string{"get"}
}

// watch is the value of --change-detection with which objects are watched.
const watch = "Watch"

// checkOptions are the flags of `check`.
type checkOptions struct {
	files      []string
	output     string
	namespace  string
	driverName string
	identity   string
	// changeDetection is that of the plugins.
	changeDetection string
	live            bool
	kubeconfig      string
	agent           string
}

// newCheckCommand returns the command `check`. With --live it asks the API server as agent.
func newCheckCommand(agent string) *cobra.Command {
	opts := &checkOptions{output: "text", driverName: "csi.refvol.dev", identity: IdentityPlugin, changeDetection: watch, agent: agent}
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Validate manifests and list the ConfigMaps and Secrets that they reference",
		Long: `Validates the attributes of refvol's volumes in the Pods and pod templates of manifests,
and lists every ConfigMap and Secret that they reference, with the path of the field. With
--live it asks the API server which of these exist and whether the pods' service account may
get them. It changes nothing and prints no value.

Exits with status 0 if all is well, 1 if it finds a problem, and 2 if that is not known: a file can't be
read, the API server does not answer, or the command line is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	opts.addFlags(cmd)
	return cmd
}

func (o *checkOptions) addFlags(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringArrayVarP(&o.files, "filename", "f", nil, "file of manifests, - for the standard input; may be repeated")
	fs.StringVarP(&o.output, "output", "o", o.output, "text or json")
	fs.StringVarP(&o.namespace, "namespace", "n", o.namespace, "namespace of manifests that name none (default: with --live that of the kubeconfig, else default)")
	fs.StringVar(&o.driverName, "driver-name", o.driverName, "name of the CSI driver, as in the CSIDriver object")
	fs.StringVar(&o.identity, "identity", o.identity, "the --identity of the plugins: with pod, the service account needs a right to whatever its pods' volumes show; with node, the pod's spec must name that itself")
	fs.StringVar(&o.changeDetection, "change-detection", o.changeDetection, "the --change-detection of the plugins: with --identity=pod, Watch takes the rights get, list and watch, Cache and Get take get only")
	fs.BoolVar(&o.live, "live", o.live, "ask the API server which objects exist and who may get them")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "kubeconfig file for --live (default: $KUBECONFIG, or ~/.kube/config)")
}

func (o *checkOptions) validate() error {
	if len(o.files) == 0 {
		return errors.New("-f: name a file of manifests, or - for the standard input")
	}
	for _, flag := range []struct {
		name, value string
		supported   []string
	}{
		{"output", o.output, []string{"text", "json"}},
		{"identity", o.identity, []string{IdentityPlugin, IdentityPod, IdentityNode}},
		{"change-detection", o.changeDetection, []string{watch, "Cache", "Get"}},
	} {
		if !slices.Contains(flag.supported, flag.value) {
			return fmt.Errorf("--%s: %q is none of %s", flag.name, flag.value, strings.Join(flag.supported, ", "))
		}
	}
	switch {
	case o.driverName == "":
		return errors.New("--driver-name must not be empty")
	case o.kubeconfig != "" && !o.live:
		return errors.New("--kubeconfig is for --live only")
	}
	return nil
}

// run checks all files, prints the report, and fails if it has a problem.
func (o *checkOptions) run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	checker, err := o.checker()
	if err != nil {
		return err
	}
	for _, name := range o.files {
		if err := addFile(ctx, checker, name, stdin); err != nil {
			return err
		}
	}
	report := checker.Report()
	write := report.WriteText
	if o.output == "json" {
		write = report.WriteJSON
	}
	if err := write(stdout); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	switch n := len(report.Problems); n {
	case 0:
		return nil
	case 1:
		return WithStatus(No, errors.New("check: 1 problem"))
	default:
		return WithStatus(No, fmt.Errorf("check: %d problems", n))
	}
}

// checker makes what the flags ask for.
func (o *checkOptions) checker() (*check.Checker, error) {
	opts := check.Options{Driver: o.driverName, Namespace: o.namespace, NodeIdentity: o.identity == IdentityNode}
	if o.identity == IdentityPod {
		opts.PodVerbs = PodVerbs(o.changeDetection == watch)
	}
	if o.live {
		client, namespace, err := apiclient.ForUser(o.kubeconfig, o.agent)
		if err != nil {
			return nil, err
		}
		opts.Cluster = &check.APIServer{
			ConfigMaps: func(namespace string) check.ConfigMaps { return client.ConfigMaps(namespace) },
			Secrets:    func(namespace string) check.Secrets { return client.Secrets(namespace) },
			Reviews:    client.SubjectAccessReviews(),
		}
		opts.Namespace = cmp.Or(opts.Namespace, namespace)
	}
	opts.Namespace = cmp.Or(opts.Namespace, "default")
	return check.New(opts)
}

// addFile checks one file, or the standard input.
func addFile(ctx context.Context, checker *check.Checker, name string, stdin io.Reader) error {
	if name == "-" {
		return checker.Add(ctx, "standard input", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	defer f.Close()
	return checker.Add(ctx, name, f)
}
