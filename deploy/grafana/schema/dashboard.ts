// The part of Grafana's dashboard types that dashboard.py uses: panels told apart by their type, Prometheus queries.
// generate.sh makes dashboard.schema.json of it.
import type { GraphFieldConfig } from '@grafana/schema';
import type {
  Dashboard,
  DataSourceRef,
  FieldConfig,
  FieldConfigSource,
  Panel,
  RowPanel,
} from '@grafana/schema/dist/esm/raw/dashboard/x/Dashboard_types.gen';
import type { Options as StatOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { Options as GraphOptions } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

interface Query {
  refId: string;
  expr: string;
  datasource: DataSourceRef;
  legendFormat: string;
  instant?: boolean;
  range: boolean;
}

// Omit<…, never>: the generator wants every named type to have a name of its own, and there are two `Options`.
interface QueryPanel extends Omit<Panel, 'type' | 'id' | 'options' | 'fieldConfig' | 'targets'> {
  id: number;
  targets: Query[];
}

interface StatPanel extends QueryPanel {
  type: 'stat';
  options: Omit<StatOptions, never>;
  fieldConfig: { defaults: Omit<FieldConfig, 'custom'>; overrides: FieldConfigSource['overrides'] };
}

interface GraphFieldDefaults extends Omit<FieldConfig, 'custom'> {
  custom?: GraphFieldConfig;
}

interface GraphPanel extends QueryPanel {
  type: 'timeseries';
  options: Omit<GraphOptions, never>;
  fieldConfig: { defaults: GraphFieldDefaults; overrides: FieldConfigSource['overrides'] };
}

/** @discriminator type */
export type CheckedPanel = StatPanel | GraphPanel | RowPanel;

// Without annotations: we have none, and the two types named DataQuery behind them stop the generator.
export interface CheckedDashboard extends Omit<Dashboard, 'panels' | 'annotations'> {
  annotations: {};
  panels: Array<CheckedPanel>;
}
