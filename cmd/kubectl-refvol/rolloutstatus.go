package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// rolloutListKind is the kind of a list of rollouts.
const rolloutListKind = "RolloutList"

// rolloutList is what rollout status prints.
type rolloutList struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Items      []rolloutItem `json:"items"`
}

// rolloutItem says how far the rollout of one object is.
type rolloutItem struct {
	fleet.Object

	// Canary means that the object is a canary. Share is its annotation. Paused means that no rollout may go on.
	Canary bool   `json:"canary"`
	Share  string `json:"share"`
	Paused bool   `json:"paused"`
	// Takers is the number of pods that show the object's newest version, and Others that of the pods that could and don't.
	Takers int `json:"takers"`
	Others int `json:"others"`
	// NotReady are the names of takers that are not ready, and NotReadySince is when the first of them ceased to be.
	NotReady      []string   `json:"notReady"`
	NotReadySince *time.Time `json:"notReadySince,omitempty"`
}

func newRolloutStatusCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts, all := newClusterOptions(flags), false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how far the rollouts are",
		Long: `The command lists the ConfigMaps and Secrets with the annotation refvol.dev/canary or refvol.dev/rollout. It prints
their share, how many pods show the newest version, how many could show it and don't, and how many of those
that show it are not ready, and since when. After a revert of a held version, the pods that don't show it
keep the bad values.`,
		Example: `  # Rollouts in all namespaces
  kubectl refvol rollout status -A`,
		Args: cobra.NoArgs,
	}
	output, sortBy := newOutput(cmd, outputName), ""
	opts.addFlags(cmd.Flags())
	opts.addStatusFlags(cmd.Flags())
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", all, "If true, the command lists the objects of all namespaces.")
	cmd.Flags().StringVar(&sortBy, "sort-by", sortBy, "The field by which the list is sorted, such as '{.takers}'.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := output.validate(); err != nil {
			return err
		}
		c, err := opts.connect()
		if err != nil {
			return err
		}
		namespace := metav1.NamespaceAll
		if !all {
			if namespace, _, err = flags.ToRawKubeConfigLoader().Namespace(); err != nil {
				return &usageError{fmt.Errorf("find the kubeconfig's namespace: %w", err)}
			}
		}
		list, err := c.rollouts(cmd.Context(), namespace)
		if err != nil {
			return err
		}
		return list.print(cmd.OutOrStdout(), output, sortBy, namespace)
	}
	return cmd
}

// print writes the rollouts of a namespace, or of all if it is "", in the format of -o.
func (list *rolloutList) print(w io.Writer, to *output, sortBy, namespace string) error {
	if sortBy != "" {
		var rows []map[string]any
		for i := range list.Items {
			row, err := generic(&list.Items[i])
			if err != nil {
				return err
			}
			rows = append(rows, row)
		}
		order, err := sortedBy(sortBy, rows)
		if err != nil {
			return err
		}
		sorted := make([]rolloutItem, len(order))
		for place, i := range order {
			sorted[place] = list.Items[i]
		}
		list.Items = sorted
	}
	switch {
	case to.isText():
		return list.writeText(w, namespace, !*to.NoHeaders)
	case to.format() == outputName:
		var objects []fleet.Object
		for i := range list.Items {
			objects = append(objects, list.Items[i].Object)
		}
		return writeNames(w, objects, namespace == metav1.NamespaceAll)
	}
	return to.write(w, list)
}

// rollouts returns the rollouts of a namespace, or of all if it is "".
func (c *cluster) rollouts(ctx context.Context, namespace string) (*rolloutList, error) {
	list := &rolloutList{status.APIVersion, rolloutListKind, []rolloutItem{}}
	versions := map[fleet.Object]status.Version{}
	for _, kind := range []string{"ConfigMap", "Secret"} {
		resource := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource(strings.ToLower(kind) + "s")).Namespace(namespace)
		err := fleet.Each(ctx, resource.List, metav1.ListOptions{}, func(found *metav1.PartialObjectMetadata) {
			state, object := stateOf(found), fleet.Object{Kind: kind, Namespace: found.Namespace, Name: found.Name}
			if state.share != "" || state.isCanary || state.isPaused {
				versions[object] = state.Version
				list.Items = append(list.Items, rolloutItem{Object: object, Canary: state.isCanary, Share: state.share, Paused: state.isPaused, NotReady: []string{}})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list the metadata of %ss: %w", kind, err)
		}
	}
	if len(list.Items) == 0 {
		return list, nil
	}
	survey, err := c.fleet().Collect(ctx) // a request with many names would be too long
	if err != nil {
		return nil, err
	}
	pods := map[string]map[string]*corev1.Pod{}
	for i := range list.Items {
		item := &list.Items[i]
		if pods[item.Namespace] == nil {
			pods[item.Namespace] = map[string]*corev1.Pod{}
			all, err := c.podsOf(ctx, item.Namespace)
			if err != nil {
				return nil, err
			}
			for j := range all {
				pods[item.Namespace][fleet.UIDOf(&all[j])] = &all[j]
			}
		}
		item.count(survey.Takers(map[fleet.Object]status.Version{item.Object: versions[item.Object]}), pods[item.Namespace])
	}
	return list, nil
}

// count counts the pods that may show an object. pods are those of its namespace, by UID.
func (item *rolloutItem) count(takers []fleet.Taker, pods map[string]*corev1.Pod) {
	for i := range takers {
		if !takers[i].Current {
			item.Others++
			continue
		}
		item.Takers++
		pod := pods[takers[i].UID]
		if pod == nil || fleet.IsReady(pod) {
			continue
		}
		item.NotReady = append(item.NotReady, pod.Name)
		for _, c := range pod.Status.Conditions {
			if since := c.LastTransitionTime.Time; c.Type == corev1.PodReady && (item.NotReadySince == nil || since.Before(*item.NotReadySince)) {
				item.NotReadySince = &since
			}
		}
	}
	slices.Sort(item.NotReady)
}

// writeText writes the rollouts of a namespace, or of all if it is "", for people.
func (list *rolloutList) writeText(w io.Writer, namespace string, headings bool) error {
	if len(list.Items) == 0 && namespace != metav1.NamespaceAll {
		return status.WriteLines(w, fmt.Sprintf("No object of namespace %s has the annotation refvol.dev/canary or refvol.dev/rollout. -A lists all namespaces.\n", namespace))
	}
	if len(list.Items) == 0 {
		return status.WriteLines(w, "No object has the annotation refvol.dev/canary or refvol.dev/rollout.\n")
	}
	var lines [][]string
	if headings {
		lines = append(lines, []string{"NAMESPACE", "OBJECT", "KIND", "SHARE", "PAUSED", "TAKERS", "OTHERS", "NOT-READY", "SINCE"})
	}
	for i := range list.Items {
		item := &list.Items[i]
		kind, since, paused := "held version", "-", "no"
		if item.Canary {
			kind = "canary"
		}
		if item.NotReadySince != nil {
			since = duration.HumanDuration(time.Since(*item.NotReadySince))
		}
		if item.Paused {
			paused = "yes"
		}
		lines = append(lines, []string{
			item.Namespace, strings.ToLower(item.Object.Kind) + "/" + item.Name, kind, cmp.Or(item.Share, "-"), paused,
			fmt.Sprint(item.Takers), fmt.Sprint(item.Others), fmt.Sprint(len(item.NotReady)), since,
		})
	}
	return status.WriteTable(w, lines)
}
